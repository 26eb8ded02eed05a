"""Tables and figures of papers, held again with real parties: one file for each, one engine and one page for all."""
