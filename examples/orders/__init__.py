"""An order service: two workers share the mails of a shop, one mail is tried again, and one becomes a dead letter."""
