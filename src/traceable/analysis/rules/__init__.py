"""The rules of the findings, one file a rule. `analysis.findings` lists them; what they share is in `evidence`."""
