"""Sends six small jobs to a real account, checks what they did, and says for how long they are billed.

``python -m tools.acceptance --role ARN --bucket B`` runs it; ``--dry-run`` shows what it would send.
"""
