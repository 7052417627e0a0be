"""Small excerpts in exactly the layouts of public sets, with values of our own whose speeds can be worked out by hand.

Columns, their order, types, gaps and quirks are those of the real files; no value is taken from them.
"""

import pandas as pd

HIVEMIND = (
    *("_step", "_runtime", "cpu/logical_core_count", "memory/total_memory_sys_MB", "_timestamp"),
    *("cpu/load/avg_sys_load_fifteen_min_percent", "memory/used_memory_sys_MB"),
    *("bandwidth/net_sent_sys_bandwidth_Mbits", "cpu/load/avg_sys_load_one_min_percent"),
    *("bandwidth/net_recv_sys_bandwidth_Mbits", "memory/used_memory_sys_percent"),
    *("02_timing/dataload_cuda_move_time_s", "02_timing/loss_calc_time_s", "02_timing/forward_time_s"),
    *("03_hivemind/num_peers", "02_timing/opt_step_time_s", "01_general/locally_processed_samples"),
    *("01_general/minibatch_loss", "02_timing/backward_time_s", "02_timing/step_time_s", "03_hivemind/global_epoch"),
    *("01_general/lr", "02_timing/dataload_time_s", "01_general/dataset_iteration_count", "01_general/step"),
)
MONITOR = (
    *("04_peers/peer_2_samples_per_second", "03_hivemind/global_samples_accumulated", "04_peers/peer_1_epoch"),
    *("_step", "_runtime", "_timestamp", "03_hivemind/num_clients", "04_peers/peer_1_samples_per_second"),
)


def table(columns, rows):
    """CSV of rows that each name the few columns that they fill."""
    lines = [",".join(str(row.get(name, "")) for name in columns) for row in rows]
    return "\n".join([",".join(columns), *lines]) + "\n"


def hivemind(folder):
    """Two hosts of one experiment: 32 samples a step in 1 s and in 2 s; a step lies in two or three rows."""
    for host, slower in (("gc-t4-1", 1), ("gc-t4-2", 2)):
        rows = [{"_step": 0, "_runtime": 1, "cpu/logical_core_count": 8.0, "_timestamp": 1700000000}]
        for step in range(4):
            time = 1700000002 + 3 * slower * step
            system = {
                "cpu/load/avg_sys_load_one_min_percent": 4.0 + step,
                "memory/used_memory_sys_percent": 5.5,
                "bandwidth/net_sent_sys_bandwidth_Mbits": 0.25,
                "bandwidth/net_recv_sys_bandwidth_Mbits": 0.125,
                "_timestamp": time,
            }
            first = {"02_timing/dataload_cuda_move_time_s": 0.05 * slower}
            second = {"02_timing/loss_calc_time_s": 0.05 * slower, "02_timing/forward_time_s": 0.4 * slower}
            last = {
                "_timestamp": time + 3 * slower,
                "03_hivemind/num_peers": 1.0,
                "02_timing/opt_step_time_s": 0.5,
                "01_general/locally_processed_samples": 32.0 * (step + 1),
                "01_general/minibatch_loss": 7.0,
                "02_timing/backward_time_s": 0.25 * slower,
                "02_timing/step_time_s": slower + 0.5,
                "02_timing/dataload_time_s": 0.25 * slower,
                "01_general/step": float(step),
            }
            parts = [first, second, last] if step == 0 else [first | second, last]
            for part in (system | parts[0], *({"_timestamp": time} | one for one in parts[1:])):
                rows.append({"_step": len(rows), "_runtime": part["_timestamp"] - 1700000000, **part})
        (folder / f"hivemind-7-{host}.csv").write_text(table(HIVEMIND, rows))
    rates = ((None, 10), (None, 11), (20.5, 12), (21.5, 12.5))
    rows = [
        {
            "04_peers/peer_2_samples_per_second": "" if second is None else second,
            "04_peers/peer_1_samples_per_second": first,
            "_step": k,
            "_timestamp": 1700000100.0 + k,
        }
        for k, (second, first) in enumerate(rates)
    ]
    (folder / "hivemind-7-vm-monitor.csv").write_text(table(MONITOR, rows))


def pai_minibatch(folder):
    """Three workers every ten seconds: 4, 5 and 8 mini-batches a second; one row is missing and one is repeated."""
    norms = {0: (250, 250, 500), 1: (200, 200, 200), 2: (125, 1000, 125)}
    rows = [(worker, 10 * k + 1, norms[worker][k]) for k in range(3) for worker in norms if (worker, k) != (2, 2)]
    lines = [f"{n},{worker},25,{time},{norm}" for n, (worker, time, norm) in enumerate([*rows, rows[-1]])]
    (folder / "job_7_norm.csv").write_text("\n".join([",worker,gpu,time,batch_time_norm", *lines]) + "\n")


def azure_vm_noise(folder):
    """Two machines: a rate of 5 or 10 a second, and a time of 50 or 100 us; rows are not in the order of time."""
    for name, values in {
        "Sysbench__Test__CPU__eastus__B8ms__Events_Per_Second": (5, 10),
        "OSBench__Test__Launch_Programs__eastus__B8ms__us_Per_Event": (50, 100),
    }.items():
        rows = [f"{values[1]},90.01,2023-09-02 05:13:10.610,0", f"{values[0]},90.01,2023-09-01 08:12:51.430,0"]
        rows += [f"{values[0]},90.02,2023-09-01 09:39:25.190,1", f"{values[1]},90.02,2023-09-01 12:39:25.190,1"]
        (folder / f"{name}.csv").write_text("\n".join(["value,runtime,starttime,VM_id", *rows]) + "\n")


def bytedance_llm(folder):
    """Two stages of two ranks, steps 23, 24 and 300; rank r computes .5 + r/4 s in two micro-batches."""
    rows = []
    for rank in range(4):
        for step in (23, 24, 300):
            for optype in ("backward-compute", "backward-recv", "forward-compute", "forward-send", "optimizer"):
                for micro in range(1 if optype == "optimizer" else 2):
                    compute = optype.endswith("compute")
                    rows.append(
                        {
                            "dp_rank": rank % 2,
                            "stage": rank // 2,
                            "rank": rank,
                            "step": step,
                            "optype": optype,
                            "start_ts": 0.5 * micro,
                            "duration": (0.5 + rank / 4) / 4 if compute else 9.0,
                            "seq_id": micro,
                            "mc": 0 if compute else -1,
                            "mb_id": micro if compute else -1,
                            "gmc": 0 if compute else -1,
                        }
                    )
    types = {"dp_rank": "int8", "stage": "int8", "rank": "int16", "optype": "category", "start_ts": "float32"}
    types |= {"duration": "float32", "seq_id": "int32", "mc": "int8", "mb_id": "int8", "gmc": "int16"}
    pd.DataFrame(rows).astype(types).to_parquet(folder / "trace-XX.parquet")


def sync_switch(folder):
    """One training as the repository keeps it: a loss and a norm every hundred steps, and fewer accuracies.

    It takes half a second a step, and a quarter after a restart.
    """
    steps = range(1, 2001, 100)
    walls = [1600525568.25 + (step / 2 if step <= 1001 else 693 + (step - 1001) / 4) for step in steps]
    for name, value in (("loss", 8.5), ("weight_decay", 1.25)):
        rows = [f"{wall},{step},{value / (1 + step)}" for wall, step in zip(walls, steps, strict=True)]
        (folder / f"{name}.csv").write_text("\n".join(["Wall time,Step,Value", *rows]) + "\n")
    rows = [f"{walls[k] + 20},{steps[k] + 40},{k / 40}" for k in range(0, 20, 5)]
    (folder / "acc.csv").write_text("\n".join(["Wall time,Step,Value", *rows]) + "\n")
