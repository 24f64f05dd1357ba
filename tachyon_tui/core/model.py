"""The base of all plain data that crosses a room's border: frozen, with a JSON form."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict


class Data(BaseModel):
    """Frozen pydantic model; unknown fields are ignored so that a newer journal can be read.

    NaN and infinity are written as such (not as null, which a required figure could not be read back from).
    """

    model_config = ConfigDict(frozen=True, extra="ignore", ser_json_inf_nan="constants")
