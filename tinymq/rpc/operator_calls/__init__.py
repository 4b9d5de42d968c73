"""The operator's end of the calls that need the cluster's secret: form, recover, make the first administrator.

They run in the operator's process, beside no broker. The brokers' end of these calls belongs to `services`.
"""
