"""What `app.doctor` looks at; none of it imports torch, which may be what is broken."""
