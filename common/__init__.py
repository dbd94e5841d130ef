"""What every party agrees on: encoder, statistics, router, release."""
