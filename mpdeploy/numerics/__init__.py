"""The ground floor: number formats, exact rounding, statistics and drift metrics.  numpy and ml_dtypes only."""
