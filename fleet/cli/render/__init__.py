"""How commands print documents as tables and text."""
