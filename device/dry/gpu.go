package dry

import (
	"bytes"
	"strconv"

	"github.com/cistern-ml/cistern/device"
)

// model is a GPU model.
type model struct {
	name       string
	memory     int64 // in MiB, as the driver reports it on most machines
	capability int   // compute capability times ten
	bare       bool  // without a library of matrix products
}

// gpus is the table of GPUs by the value of the option gpu.
var gpus = map[string]model{
	"A100":      {"NVIDIA A100-SXM4-80GB", 81050, 80, false},
	"A100-40GB": {"NVIDIA A100-SXM4-40GB", 40339, 80, false},
	"H100":      {"NVIDIA H100 80GB HBM3", 81089, 90, false},
	"H200":      {"NVIDIA H200", 143156, 90, false},
	"L4":        {"NVIDIA L4", 22491, 89, false},
	"RTX4090":   {"NVIDIA GeForce RTX 4090", 24217, 89, false},
	"T4":        {"Tesla T4", 15102, 75, false},
}

// gpu stands for a GPU.
type gpu struct {
	front
	model
}

func newGPU(under device.Device, m model) *gpu {
	total := under.Properties().TotalMemory
	return &gpu{front{under.(below), "dry:cuda", device.Properties{Backend: "cuda", Model: m.name, TotalMemory: total,
		Alignment: 256, Peers: true, Dry: true}}, m}
}

// fatbin is the magic number of a fatbin.
var fatbin = []byte("\x50\xed\x55\xba")

// LoadModule refuses an image that was compiled for later GPUs, and every fatbin, because a fatbin
// does not show its target.
func (d *gpu) LoadModule(image []byte) (device.Module, error) {
	if bytes.HasPrefix(image, fatbin) {
		return nil, &device.Error{Op: "LoadModule", Device: d.front.name, Bytes: int64(len(image)), Err: device.ErrUnsupported,
			Detail: "the image is a fatbin; a dry device takes PTX"}
	}
	if _, rest, ok := bytes.Cut(image, []byte("\n.target sm_")); ok {
		digits, _, _ := bytes.Cut(rest, []byte("\n"))
		if target, err := strconv.Atoi(string(digits)); err == nil && target > d.capability {
			return nil, d.named(self.Invalid("LoadModule", int64(len(image)), "the image is for compute capability %d.%d and later, and this GPU has %d.%d",
				target/10, target%10, d.capability/10, d.capability%10))
		}
	}
	return module{}, nil
}

// module pretends to have every kernel.
type module struct{}

func (module) Kernel(name string) (any, error) { return name, nil }
func (module) Close() error                    { return nil }

// The workspaces are those of package device/cuda.
const (
	hopperWorkspace = 32 << 20
	otherWorkspace  = 4 << 20
)

// MatMulWorkspace returns 32 MiB from Hopper on and 4 MiB before.
func (d *gpu) MatMulWorkspace() (int64, error) {
	switch {
	case d.bare:
		return 0, &device.Error{Op: "MatMul", Device: d.front.name, Err: device.ErrUnsupported, Detail: "the device was opened with cublas=none"}
	case d.capability >= 90:
		return hopperWorkspace, nil
	}
	return otherWorkspace, nil
}

func (d *gpu) MatMulEpilogues() bool { return !d.bare }
func (d *gpu) MatMulBFloat16() bool  { return !d.bare && d.capability >= 80 }

// MatMul queues a launch that does nothing.
func (d *gpu) MatMul(s device.Stream, g *device.Gemm) error {
	_, err := d.MatMulWorkspace()
	switch {
	case err != nil:
		return err
	case s == nil || s.Device() != device.Device(d):
		return d.named(self.Invalid("MatMul", 0, "the stream is not one of this device"))
	case g == nil || g.M < 0 || g.N < 0 || g.K < 0 || g.Batch < 0:
		return d.named(self.Invalid("MatMul", 0, "the product is nil, or one of its sizes is negative"))
	}
	return s.Launch(&device.Launch{Name: "matmul", Kernel: "matmul", Writes: []device.Range{g.Workspace}})
}

var (
	_ device.ModuleLoader     = (*gpu)(nil)
	_ device.MatrixMultiplier = (*gpu)(nil)
)
