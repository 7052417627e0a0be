"""Files of `/proc` and of control groups, made in a folder, for the tests of covariates and quotas."""

import time

# A quota above the worker's own group, in both versions.
NESTED_1 = {
    "proc/self/mounts": "cgroup /groups/cpu cgroup rw,cpu 0 0\ncgroup /groups/cpuacct cgroup rw,cpuacct 0 0\n",
    "proc/self/cgroup": "2:cpuacct:/pod/worker\n1:cpu:/pod/worker\n",
    "groups/cpu/cpu.cfs_quota_us": "-1\n",
    "groups/cpu/cpu.cfs_period_us": "10000\n",
    "groups/cpu/cpu.stat": "nr_periods 0\nnr_throttled 0\nthrottled_time 0\n",
    "groups/cpu/pod/cpu.cfs_quota_us": "4000\n",
    "groups/cpu/pod/cpu.cfs_period_us": "10000\n",
    "groups/cpu/pod/cpu.stat": "nr_periods 9\nnr_throttled 3\nthrottled_time 1000000000\n",
    "groups/cpuacct/pod/cpuacct.usage": "7\n",
    "groups/cpu/pod/worker/cpu.cfs_quota_us": "-1\n",
    "groups/cpu/pod/worker/cpu.cfs_period_us": "10000\n",
    "groups/cpu/pod/worker/cpu.stat": "nr_periods 0\nnr_throttled 0\nthrottled_time 0\n",
}
NESTED_2 = {
    "proc/self/mounts": "cgroup2 /groups cgroup2 rw 0 0\n",
    "proc/self/cgroup": "0::/pod/worker\n",
    "groups/cpu.stat": "usage_usec 1\n",
    "groups/pod/cpu.max": "4000 10000\n",
    "groups/pod/cpu.stat": "usage_usec 1\nnr_throttled 3\nthrottled_usec 1000000\n",
    "groups/pod/worker/cpu.stat": "usage_usec 1\n",  # as where the CPU controller ends above it
}


def made(folder, files):
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return folder


def twice(covariate, change):
    """The covariate's growth per second between two boundaries that lie a moment apart, times the moment."""
    covariate.sample()
    begin = time.perf_counter()
    change()
    time.sleep(0.02)
    return covariate.sample() * (time.perf_counter() - begin)
