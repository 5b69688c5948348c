"""The admin address of a member: status, metrics, the live page, and operators' commands."""
