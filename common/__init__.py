"""What every command shares: configuration from the command line, exit statuses, errors."""
