"""Tables and figures of papers, reproduced with real parties: one file each, one engine and one page for all."""
