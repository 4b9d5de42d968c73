"""Sales become invoices exactly once, while the programs that do it are killed."""
