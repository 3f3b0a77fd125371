"""The embedded recorder: its files, and the nsys SQLite file that is made of them."""
