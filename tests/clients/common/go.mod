module fleet/tests/clients/common

go 1.26.0
