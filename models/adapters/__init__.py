"""Adapters beside a frozen vision transformer, and alternatives for comparison (Tastan and Nandakumar 2025)."""
