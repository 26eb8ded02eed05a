"""What a party tests before the day: a line for each thing that it will need, with the remedy where that is missing."""
