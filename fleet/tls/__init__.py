"""Certificates, TLS contexts, tokens and credentials."""
