"""The performance rules, one file a rule. `analysis.findings` lists them; what they share is in `evidence`."""
