"""What all rooms share: records, users, domains, exact units, bytes. No noise, no mechanism."""
