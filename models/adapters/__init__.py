"""Adapters beside a frozen vision transformer, and what they are compared with (Tastan and Nandakumar 2025)."""
