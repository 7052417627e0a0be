"""Predictors that break the contract, and whether a check of it lets one pass."""

from paceline.predictors import LastValue, checks


def passes(kind, name):
    try:
        return checks.run(kind, [name]) == [name]
    except checks.ContractBrokenError:
        return False


def off_by(factor):
    class OffBy(LastValue):
        def _next_speed(self, covariates_WD, horizon):
            return factor * super()._next_speed(covariates_WD, horizon)

    return OffBy
