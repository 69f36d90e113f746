"""What events say without protection, computed plainly with pandas."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd

SUMS = ("count", "users", "sum")
"""Statistics that are 0 of nothing, and whose values add up over bins and slots."""


def starts(times: pd.Series, slot: str, zone: str, first: str) -> pd.Series:
    """Start of the slot that holds each time, in UTC."""
    local = times.dt.tz_convert(zone)
    begin = pd.Timestamp(first, tz=zone)
    length = pd.Timedelta(slot)
    if length % pd.Timedelta("1d"):
        return begin.tz_convert("UTC") + (times - begin) // length * length
    days = (local.dt.tz_localize(None).dt.normalize() - begin.tz_localize(None)).dt.days
    days = days // length.days * length.days
    naive = begin.tz_localize(None) + pd.to_timedelta(days, "D")
    return naive.dt.tz_localize(zone).dt.tz_convert("UTC")


def truth(events: pd.DataFrame, query: Mapping[str, Any], place: Mapping[str, str]) -> pd.DataFrame:
    """The true figures of a query: columns start, key, statistic and true; without empty slots.

    Args:
        events: with a column for each that the query names.
        query: as in a file of queries.
        place: slot, zone and first day.
    """
    rows = events.assign(start=starts(events.time, **place))
    for column, wanted in query.get("where", {}).items():
        rows = rows[rows[column] == wanted]
    statistic, column = query.get("statistic", "count"), query.get("of")
    if column:
        rows = rows[rows[column].notna()]
    most = query.get("max_contributions", 1)
    kept = rows.groupby(["start", "user"]).cumcount() < most
    if "by" in query or column:
        assert kept.all()  # which of more are kept would be a matter of chance
    rows = rows[kept]
    if statistic == "distinct":
        rows = rows.drop_duplicates(["start", "user"])
    tables = []
    for level, label in enumerate([query.get("by"), *query.get("levels", ())]):
        keys = ["start", rows[label].rename("key")] if label in rows else ["start"]
        for name, found in _figures(rows.groupby(keys), statistic, column, query).items():
            table = found.rename("true").reset_index()
            tables.append(table.assign(statistic=name, level=level))
    whole = pd.concat(tables)
    return whole.assign(key=whole["key"].fillna("all") if "key" in whole else "all")


def _figures(groups: Any, statistic: str, column: str | None, query: Mapping[str, Any]) -> Any:
    if statistic == "count":
        return {"count": groups.size().astype(float)}
    if statistic == "distinct":
        return {"users": groups.size().astype(float)}
    if statistic == "quantiles":
        return {
            f"p{round(100 * share)}": groups[column].quantile(share, interpolation="lower")
            for share in query["quantiles"]
        }
    if statistic == "stddev":
        return {"stddev": groups[column].std(ddof=0)}
    return {statistic: getattr(groups[column], statistic)()}


def joined(released: pd.DataFrame, true: pd.DataFrame) -> pd.DataFrame:
    """Released rows with what is true of each: 0 for a count or a sum of nothing, else NaN."""
    found = released.assign(start=pd.to_datetime(released.start, utc=True)).merge(
        true, on=["start", "key", "statistic", "level"], how="left"
    )
    whole = found.statistic.isin(SUMS)
    return found.assign(true=np.where(whole, found.true.fillna(0), found.true))
