"""Public sets that can be fetched: where each file is, at a fixed commit, under which licence, with which sha256.

Of a file whose path is empty only the sha256 is known: its address has to be given. Of a file whose sha256 is empty
nobody here has seen the whole file: its sha256 has to be given. Nothing is downloaded unless it is asked for.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class RemoteFile:
    """A file of a set: its name in the cache, its path below the set's address, and the sha256 of its bytes."""

    name: str
    path: str
    sha256: str


@dataclass(frozen=True, kw_only=True)
class RemoteSet:
    """A public set, or the part of it that is listed here.

    Parameters
    ----------
    name, about
        What it is called, and what it is, in a sentence.
    address
        The folder in the source's repository at a fixed commit; ends with a slash.
    licence
        Under which the authors publish it.
    format
        What its files are read as; ``profiles: X`` is for :func:`paceline.datasets.profiles.read_profiles`.
    selection
        Which part of the source is listed.
    files
        The files.
    """

    name: str
    about: str
    address: str
    licence: str
    format: str
    selection: str
    files: tuple[RemoteFile, ...]


SETS = (
    RemoteSet(
        name="hivemind_multicloud",
        about="Training steps of 18 workers on Google, AWS and LambdaLabs machines, with CPU, memory and network.",
        address="https://raw.githubusercontent.com/cirquit/hivemind-multi-cloud/654cc023d1ee5e049d8ed72ed66194e137fcc114/artifacts/wandb/",
        licence="MIT",
        format="hivemind",
        selection="whole files of 5 of the 332 experiments",
        files=(
            RemoteFile(
                "hivemind-113-aws-t4-1.csv",
                "hivemind-113-aws-t4-1.csv",
                "96661dcdaae1405a7c268421b28850be3657459cc2d8c2bc5ca283269b7a98cf",
            ),
            RemoteFile(
                "hivemind-113-aws-t4-2.csv",
                "hivemind-113-aws-t4-2.csv",
                "f0b9613880bb0adbc281aa8e04b5b5fffdac88a7924008f6bec9e30e909bc505",
            ),
            RemoteFile(
                "hivemind-113-gc-t4-1.csv",
                "hivemind-113-gc-t4-1.csv",
                "2924d19e955459d778a63e2611d3fcdfb6a5a63b67c267f2f4e93d092d5643dd",
            ),
            RemoteFile(
                "hivemind-113-gc-t4-2.csv",
                "hivemind-113-gc-t4-2.csv",
                "6b90ec882e641c4d00429c6a1d5fcbb4f792682533a15dcceb3a6ed0bcec0da5",
            ),
            RemoteFile(
                "hivemind-113-vm-monitor.csv",
                "hivemind-113-vm-monitor.csv",
                "39b5ae75b5acf1faa07e18824cdffd2df405911d9b4ffebf69b9584fa24a6f25",
            ),
            RemoteFile(
                "hivemind-134-8xV100.csv",
                "hivemind-134-8xV100.csv",
                "6c27ce961504a29f9860b900f393b573ce698ffe067fe7bc7c376d6c419159f9",
            ),
            RemoteFile(
                "hivemind-134-gc-t4-1.csv",
                "hivemind-134-gc-t4-1.csv",
                "4248855ad2c09c4bb376b799128351ae40cf288a93d025b9d09ca4f00165d4d6",
            ),
            RemoteFile(
                "hivemind-134-vm-monitor.csv",
                "hivemind-134-vm-monitor.csv",
                "c972d35c90f7b214c85ab5590e4a2b526bf6609c03b6aeab42859238dd8a30b2",
            ),
            RemoteFile(
                "hivemind-315-lambda-a10-1.csv",
                "hivemind-315-lambda-a10-1.csv",
                "b0b2628301bc9787e7ab0a03db1d943767fdef79a78664e46266c9f1ce075759",
            ),
            RemoteFile(
                "hivemind-315-lambda-a10-2.csv",
                "hivemind-315-lambda-a10-2.csv",
                "bdaedb97756d5b47772191748970c23b5d6031f45e2b519599ec60cf1f4f905c",
            ),
            RemoteFile(
                "hivemind-315-lambda-a10-3.csv",
                "hivemind-315-lambda-a10-3.csv",
                "43b76e26fddebc6047ff3e9ff5e210883f7e23f35c8632b980bba27a98be3957",
            ),
            RemoteFile(
                "hivemind-315-lambda-a10-4.csv",
                "hivemind-315-lambda-a10-4.csv",
                "07cca331d8f2017ea00df904d7147904106b8ac9a9c140159aed8bbfaa3a3caa",
            ),
            RemoteFile(
                "hivemind-315-vm-monitor.csv",
                "hivemind-315-vm-monitor.csv",
                "eab2a3af277b0d455a49d95e667f211eba41f5b4b2e995bbd5d3a0cbf26ae252",
            ),
            RemoteFile(
                "hivemind-77-gc-t4-1.csv",
                "hivemind-77-gc-t4-1.csv",
                "c91fd9d624d12733b7ff0624cd1851faa97acc6ba59b0ff643fa918a8523e801",
            ),
            RemoteFile(
                "hivemind-77-gc-t4-2.csv",
                "hivemind-77-gc-t4-2.csv",
                "3931ab786ab3c25ff9f5625be07c571a724bc70bbbb50fddecf762f232eb4595",
            ),
            RemoteFile(
                "hivemind-77-gc-t4-3.csv",
                "hivemind-77-gc-t4-3.csv",
                "2995b759e50f871427173aea414ae755877456355b864e989da66a3f98798ff7",
            ),
            RemoteFile(
                "hivemind-77-gc-t4-4.csv",
                "hivemind-77-gc-t4-4.csv",
                "54faa783ab8b3ac51e281247ced5e2721378d09ac25af20eea512c7323655151",
            ),
            RemoteFile(
                "hivemind-77-vm-monitor.csv",
                "hivemind-77-vm-monitor.csv",
                "d8400be32582bb7bd8e76bf500435843ae737ce14ebb7bd5f7e56038834fab3d",
            ),
            RemoteFile(
                "hivemind-78-gc-t4-1.csv",
                "hivemind-78-gc-t4-1.csv",
                "d61a6d0cea9a158ff14a395d7cb337f40f78ba421c0dec86282c5d76e24b3844",
            ),
            RemoteFile(
                "hivemind-78-gc-t4-2.csv",
                "hivemind-78-gc-t4-2.csv",
                "3507800c247d2db7e40fc10566e5026dea74af63312666a6c6f41827c2a5b474",
            ),
            RemoteFile(
                "hivemind-78-gc-t4-3.csv",
                "hivemind-78-gc-t4-3.csv",
                "f35190169652efcec15551c4b504fbbf799a1458dadd802f5fc0c451566e3591",
            ),
            RemoteFile(
                "hivemind-78-gc-t4-4.csv",
                "hivemind-78-gc-t4-4.csv",
                "749a50acaf597ec81b85a05c3b7890014536c1d9e575db8ce1a0a8d85dc928ff",
            ),
            RemoteFile(
                "hivemind-78-vm-monitor.csv",
                "hivemind-78-vm-monitor.csv",
                "c54f0995f3f94ee63027d174cc41ae704b5d73f978d47772185be9b944981947",
            ),
        ),
    ),
    RemoteSet(
        name="pai_minibatch",
        about="Mini-batch times of the workers of production jobs on Alibaba PAI.",
        address="https://raw.githubusercontent.com/alibaba/clusterdata/7a6c496e4f4b6ce6150be8f881cb051bf2abff42/cluster-trace-gpu-v2020/mini-batch-time/data/",
        licence="CC BY 4.0",
        format="pai_minibatch",
        selection="whole files of jobs 1 and 3, and the table of variation",
        files=(
            RemoteFile(
                "coefficient_variation.csv",
                "coefficient_variation.csv",
                "81a96c3e5cec9d5caff5df10cfd971ef79556319b0ce436e2eed6d08ae417fc4",
            ),
            RemoteFile(
                "job_1_norm.csv", "job_1_norm.csv", "6f555e44ababa68c25659f911eb28fa7658f7ff0b3c08161a57b3bce0bf0d2dd"
            ),
            RemoteFile(
                "job_3_norm.csv", "job_3_norm.csv", "47057a62829a1fbea6c90e43aeba53d4a9c2804c38ce31fd618d2426ef2b530b"
            ),
        ),
    ),
    RemoteSet(
        name="bytedance_llm",
        about="Operations of two jobs that train language models, with stragglers.",
        address="https://raw.githubusercontent.com/ByteDance-Seed/StragglerAnalysis/8efcd7f37f158af26ac64d0b6fbf1f22d28a6e83/data/",
        licence="Apache-2.0",
        format="bytedance_llm",
        selection="whole files of jobs ST and SE",
        files=(
            RemoteFile(
                "trace-SE.parquet",
                "trace-SE.parquet",
                "f7da01edebb2227e51d0fb0c28d8b141f61743e5ac1633e0a3b227d48edf1e50",
            ),
            RemoteFile(
                "trace-ST.parquet",
                "trace-ST.parquet",
                "85a995b32699992319e19fa2248cf43d2965bbb6b51440e8a6147d9abc511461",
            ),
        ),
    ),
    RemoteSet(
        name="azure_vm_noise",
        about="Benchmarks on long-lived virtual machines over 16 months.",
        address="https://raw.githubusercontent.com/Azure/AzurePublicDataset/b469a113cedca53ddc3bdea71a143dc4b7d8700c/vm-noise-data/",
        licence="CC BY 4.0",
        format="azure_vm_noise",
        selection="whole files of 7 benchmarks in eastus, renamed; their paths in the source were not kept",
        files=(
            RemoteFile(
                "Intel_Memory_Latency_Checker__Test__Max_Bandwidth_-_1_1_Reads-Writes__eastus__B8ms__MiB_s.csv",
                "",
                "f57d1939e5944f02b7367c566944c50db5b4c02a86f8cea2d22de60118249349",
            ),
            RemoteFile(
                "Intel_Memory_Latency_Checker__Test__Max_Bandwidth_-_1_1_Reads-Writes__eastus__D8s_v5__MiB_s.csv",
                "",
                "a043f86c45abbbc74366142cf4527b4bf99efe061c7e92e16bb28be937f40184",
            ),
            RemoteFile(
                "Intel_Memory_Latency_Checker__Test__Max_Bandwidth_-_Stream-Triad_Like__eastus__B8ms__MiB_s.csv",
                "",
                "6d0d879f2436576b5b4563f2610e19ee9f7e4249ec7a9a22974b28c734d50e5c",
            ),
            RemoteFile(
                "Intel_Memory_Latency_Checker__Test__Max_Bandwidth_-_Stream-Triad_Like__eastus__D8s_v5__MiB_s.csv",
                "",
                "bb93345c7b9f2df7784a9ddb39bb4868fbfcbfd5e24cedc5ed288c28c4831c87",
            ),
            RemoteFile(
                "OSBench__Test__Launch_Programs__eastus__B8ms__us_Per_Event.csv",
                "",
                "9a17c0cd729805cff37cd838bba2d73f9c0a34cce11a3f08e344e523461b268d",
            ),
            RemoteFile(
                "OSBench__Test__Launch_Programs__eastus__D8s_v5__us_Per_Event.csv",
                "",
                "0f32c60d98cec12f726a05f57d9f3b5853236dc027269c0da9d2a674a9fc586f",
            ),
            RemoteFile(
                "PostgreSQL__Scaling_Factor__25_-_Clients__1_-_Mode__Read_Write__TPC-B_Like___eastus__B8ms__TPS.csv",
                "",
                "7f3ff0956363865fea4075ec43e2266d71c0845459a1c02434b9122201ddb239",
            ),
            RemoteFile(
                "PostgreSQL__Scaling_Factor__25_-_Clients__1_-_Mode__Read_Write__TPC-B_Like___eastus__D8s_v5__TPS.csv",
                "",
                "7d9e00f90f48b654da06745becb9f17a48b8201605b7d47a522e37dc836b19a7",
            ),
            RemoteFile(
                "Stress-NG__Test__CPU_Cache__eastus__B8ms__Bogo_Ops_s.csv",
                "",
                "f043a232734eaed37d3ea428521f02e1a78ec8870bb2b42bdab6c91fccabd8e8",
            ),
            RemoteFile(
                "Stress-NG__Test__CPU_Cache__eastus__D8s_v5__Bogo_Ops_s.csv",
                "",
                "2325563d7d43c108e4e4337837b20457f091672acb91da3ad3270247a98104a9",
            ),
            RemoteFile(
                "Sysbench__Test__CPU__eastus__B8ms__Events_Per_Second.csv",
                "",
                "229e1087ab00664bb40bf082f1f2f4afaaa5a0e5626bc1e78bc06752e546fbd7",
            ),
            RemoteFile(
                "Sysbench__Test__CPU__eastus__D8s_v5__Events_Per_Second.csv",
                "",
                "55167106d80df33334d791ca2f8d62675fdd9e26d8a3194be3552271d07dfede",
            ),
            RemoteFile(
                "Sysbench__Test__RAM__Memory__eastus__B8ms__MiB_sec.csv",
                "",
                "1a3445a4a2a924b216a6d263d9e386b003d391bb33ebb76116e8d858946615fd",
            ),
            RemoteFile(
                "Sysbench__Test__RAM__Memory__eastus__D8s_v5__MiB_sec.csv",
                "",
                "a374b2cf22d0665d4376dd4a52e75bd8210824c5d0e9cef59d4b5554589887c1",
            ),
        ),
    ),
    RemoteSet(
        name="gavel",
        about="Steps per second of models by GPU and batch size.",
        address="https://raw.githubusercontent.com/stanford-futuredata/gavel/c4fa40097339e9608ab71fd64c8bdea96a5e4a4c/scheduler/",
        licence="MIT",
        format="profiles: gavel",
        selection="whole file",
        files=(
            RemoteFile(
                "simulation_throughputs.json",
                "simulation_throughputs.json",
                "17111f7295f03265fd9e5118d7eba31e3dd9d6e50a2e215c13ad3d3f91f74381",
            ),
        ),
    ),
    RemoteSet(
        name="zeus",
        about="Time of an epoch by GPU, model, batch size and power limit.",
        address="https://raw.githubusercontent.com/ml-energy/zeus/75a8b9398034eb9baf74ca0a830c2c31bcce52cd/examples/research_reproducibility/zeus_nsdi23/trace/",
        licence="Apache-2.0",
        format="profiles: zeus",
        selection="whole files of V100 and P100",
        files=(
            RemoteFile(
                "summary_power_p100.csv",
                "summary_power_p100.csv",
                "158e9a6784b6e2d26710529b132cf173b227dc8688f4931c19a637bce2b7503b",
            ),
            RemoteFile(
                "summary_power_v100.csv",
                "summary_power_v100.csv",
                "f0b066dd1a451bd78f730e001ac3a7c411979bc7f0846f12c1a9fb604aa90628",
            ),
        ),
    ),
    RemoteSet(
        name="pollux",
        about="Step and synchronisation times by placement and batch size on T4.",
        address="https://raw.githubusercontent.com/petuum/adaptdl/c793c7089bd307462686339d29707925c461f9a9/simulator/traces/",
        licence="Apache-2.0",
        format="profiles: pollux",
        selection="whole files of cifar10, bert and deepspeech2",
        files=(
            RemoteFile(
                "bert_placements.csv",
                "bert/placements.csv",
                "982811b611bc8447a078289939a2ccafc1f76c06e1e8ebcc4f4866a8e8fcdc0f",
            ),
            RemoteFile(
                "bert_scalability.csv",
                "bert/scalability.csv",
                "d3fac874d45f501b8126cd1a5238f9f53eec4a1ac17cc1a5133f1a17fc891943",
            ),
            RemoteFile(
                "cifar10_placements.csv",
                "cifar10/placements.csv",
                "e77d1d8781e2e48c3952580bdf705f3be4f27cbbdcd0a2087eb152224a271b6b",
            ),
            RemoteFile(
                "cifar10_scalability.csv",
                "cifar10/scalability.csv",
                "d4bd0dd8ab0df8ce76bbd788b210637dd204937cd4a18f112577f2a812634152",
            ),
            RemoteFile(
                "deepspeech2_placements.csv",
                "deepspeech2/placements.csv",
                "0908c53bfc20123ad60ad6c4984cfcdf53a623773f4e44e9f01d58305e5379b7",
            ),
            RemoteFile(
                "deepspeech2_scalability.csv",
                "deepspeech2/scalability.csv",
                "d49ed2ecb5f3b3f1204ef2200eb8a0f36e373830ae54833e2318085f7d237316",
            ),
        ),
    ),
    RemoteSet(
        name="flash",
        about="Training time of layers on two phones.",
        address="https://raw.githubusercontent.com/PKU-Chengxu/FLASH/55cbede0131877b583ed55333e980985a1925afd/models/utils/device_util/regression/",
        licence="BSD-2-Clause",
        format="profiles: flash",
        selection="whole files; their sha256 is not known here, as the sample that was seen is a selection",
        files=(
            RemoteFile("nexus6_embedding.json", "nexus6/embedding.json", ""),
            RemoteFile("nexus6_lstm.json", "nexus6/lstm.json", ""),
            RemoteFile("nexus6_output.json", "nexus6/output.json", ""),
            RemoteFile("redmi_note8_embedding.json", "redmi_note8/embedding.json", ""),
            RemoteFile("redmi_note8_lstm.json", "redmi_note8/lstm.json", ""),
            RemoteFile("redmi_note8_output.json", "redmi_note8/output.json", ""),
        ),
    ),
)

REMOTE_SETS: dict[str, RemoteSet] = {one.name: one for one in SETS}
"""Every set by its name."""
