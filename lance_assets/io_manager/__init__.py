"""`LanceIOManager`: the data frames it takes and gives, and the rows that a partition key selects."""
