"""Sends six small jobs to a real account, checks what they did, and says what they cost.

``python -m tools.acceptance --role ARN --bucket B`` runs it; ``--dry-run`` shows what it would send.
"""
