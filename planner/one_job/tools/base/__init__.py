"""What all training tools share: their record, plans in the numbers that they take, what writers and readers use."""
