package trace

import (
	"go.opentelemetry.io/otel/attribute"
	semconv "go.opentelemetry.io/otel/semconv/v1.43.0"

	"github.com/cistern-ml/cistern/device"
)

// identity returns the attributes that identify a device. Agents that watch the GPUs of a machine
// (hw.gpu.memory.usage and others) use the same hw.id, so their metrics can be joined with ours.
func identity(dev device.Device) []attribute.KeyValue {
	a := []attribute.KeyValue{KeyDevice.String(dev.Name())}
	if p := dev.Properties(); p.UUID != "" {
		a = append(a, semconv.HwID(p.UUID), semconv.HwTypeGpu)
	}
	return a
}

// description returns identity and further attributes, which spans have and metrics don't.
func description(dev device.Device) []attribute.KeyValue {
	a, p := identity(dev), dev.Properties()
	if p.UUID != "" {
		a = append(a, semconv.HwModel(p.Model))
	}
	if p.PCIAddress != "" {
		a = append(a, KeyPCIAddress.String(p.PCIAddress))
	}
	return a
}
