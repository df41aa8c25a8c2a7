"""A service that mails, as small as it can be."""
