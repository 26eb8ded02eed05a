"""Many parties on one machine: experiments described by one file, and the processes that run them."""
