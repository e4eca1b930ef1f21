"""What others call the catalogue's devices: NVIDIA's and AMD's drivers in node labels, Ray in its accelerator types."""

from __future__ import annotations

PRODUCT_LABELS = {
    "k80": "Tesla-K80",
    "p100": "Tesla-P100-SXM2-16GB",
    "v100-16gb": "Tesla-V100-SXM2-16GB",
    "v100-32gb": "Tesla-V100-SXM2-32GB",
    "t4": "Tesla-T4",
    "a10": "NVIDIA-A10",
    "a30": "NVIDIA-A30",
    "a40": "NVIDIA-A40",
    "a100-40gb": "NVIDIA-A100-SXM4-40GB",
    "a100-80gb": "NVIDIA-A100-SXM4-80GB",
    "a100-40gb-pcie": "NVIDIA-A100-PCIE-40GB",
    "a100-80gb-pcie": "NVIDIA-A100-80GB-PCIe",
    "a800": "NVIDIA-A800-SXM4-80GB",
    "l4": "NVIDIA-L4",
    "l20": "NVIDIA-L20",
    "l40s": "NVIDIA-L40S",
    "h20": "NVIDIA-H20",
    "h800": "NVIDIA-H800",
    "h100": "NVIDIA-H100-80GB-HBM3",
    "h100-pcie": "NVIDIA-H100-PCIe",
    "h100-nvl": "NVIDIA-H100-NVL",
    "h200": "NVIDIA-H200",
    "gh200": "NVIDIA-GH200-480GB",
    "b200": "NVIDIA-B200",
    "gb200": "NVIDIA-GB200",
    "gb300": "NVIDIA-GB300",
    "rtx-3090": "NVIDIA-GeForce-RTX-3090",
    "rtx-4090": "NVIDIA-GeForce-RTX-4090",
    "rtx-5090": "NVIDIA-GeForce-RTX-5090",
    "rtx-8000": "Quadro-RTX-8000",
    "rtx-a6000": "NVIDIA-RTX-A6000",
    "rtx-6000-ada": "NVIDIA-RTX-6000-Ada-Generation",
    "mi300x": "AMD_Instinct_MI300X_OAM",
    "mi325x": "AMD_Instinct_MI325X_OAM",
}
"""The value of nvidia.com/gpu.product (NVIDIA k8s-device-plugin 0.17, gpu-feature-discovery: the driver's name with
hyphens for spaces) or of amd.com/gpu.product-name (ROCm k8s-device-plugin, node labeller)."""

RAY_TYPES = {
    "k80": "K80",
    "p100": "P100",
    "v100-16gb": "V100",
    "v100-32gb": "V100",
    "t4": "T4",
    "l4": "L4",
    "l40s": "L40S",
    "a100-40gb": "A100",
    "a100-80gb": "A100",
    "a100-40gb-pcie": "A100",
    "a100-80gb-pcie": "A100",
    "h20": "H20",
    "h100": "H100",
    "h100-pcie": "H100",
    "h100-nvl": "H100",
    "h200": "H200",
    "b200": "B200",
    "b300": "B300",
    "gb200": "GB200",
    "gb300": "GB300",
    "mi250x": "AMD-Instinct-MI250X",
    "mi300x": "AMD-Instinct-MI300X-OAM",
    "mi325x": "AMD-Instinct-MI325X-OAM",
    "mi355x": "AMD-Instinct-MI355X-OAM",
}
"""Ray's accelerator types (ray.util.accelerators, 2.60): a node that has one has a resource accelerator_type:NAME."""


def is_amd(device: str) -> bool:
    """Whether a device is AMD's, and the device plugin's resource amd.com/gpu.

    >>> is_amd("mi300x"), is_amd("h100")
    (True, False)
    """
    return device.startswith("mi")
