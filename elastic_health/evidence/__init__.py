"""What is collected before a group is torn down."""
