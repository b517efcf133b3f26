"""The one codec between the dataclasses of `core` and the messages of `headrace.rpc.v1`: pure functions, no I/O.

`encode_x` and `decode_x` are inverse. Both raise InvalidRequest for values that the other side cannot hold: a
token id out of range, text that is not Unicode, an unknown enum value, a missing part.
"""
