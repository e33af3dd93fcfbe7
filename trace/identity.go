package trace

import (
	"go.opentelemetry.io/otel/attribute"
	semconv "go.opentelemetry.io/otel/semconv/v1.43.0"

	"github.com/cistern-ml/cistern/device"
)

// identity is which device it is. Agents that watch the GPUs of a machine (hw.gpu.memory.usage and others) know them by
// hw.id, so that their metrics and ours can be joined.
func identity(dev device.Device) []attribute.KeyValue {
	a := []attribute.KeyValue{KeyDevice.String(dev.Name())}
	if p := dev.Properties(); p.UUID != "" {
		a = append(a, semconv.HwID(p.UUID), semconv.HwTypeGpu)
	}
	return a
}

// description is identity with what a span has room for, and a series has not.
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
