"""What can be wrong with a machine (doctor), with a run and with a recording (diagnosis)."""
