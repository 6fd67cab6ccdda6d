"""Recurrent layers under torch.compile and torch.export."""
