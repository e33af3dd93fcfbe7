package trace

import (
	"errors"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"
)

// instruments makes observable instruments and keeps them, for RegisterCallback.
type instruments struct {
	meter metric.Meter
	all   []metric.Observable
	errs  []error
}

func (i *instruments) upDown(name, unit, description string) metric.Int64Observable {
	x, err := i.meter.Int64ObservableUpDownCounter(name, metric.WithUnit(unit), metric.WithDescription(description))
	return i.keep(x, err)
}

func (i *instruments) counter(name, unit, description string) metric.Int64Observable {
	x, err := i.meter.Int64ObservableCounter(name, metric.WithUnit(unit), metric.WithDescription(description))
	return i.keep(x, err)
}

func (i *instruments) gauge(name, unit, description string) metric.Int64Observable {
	x, err := i.meter.Int64ObservableGauge(name, metric.WithUnit(unit), metric.WithDescription(description))
	return i.keep(x, err)
}

func (i *instruments) keep(x metric.Int64Observable, err error) metric.Int64Observable {
	i.all = append(i.all, x)
	i.errs = append(i.errs, err)
	return x
}

func (i *instruments) err() error { return errors.Join(i.errs...) }

// series makes the options of one series: the attributes of its device, of the caller, and its own.
func series(device string, caller []attribute.KeyValue, own ...attribute.KeyValue) []metric.ObserveOption {
	all := append([]attribute.KeyValue{KeyDevice.String(device)}, caller...)
	return []metric.ObserveOption{metric.WithAttributeSet(attribute.NewSet(append(all, own...)...))}
}
