package trace

import (
	"errors"
	"slices"

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
	return keep(i, x, err)
}

func (i *instruments) counter(name, unit, description string) metric.Int64Observable {
	x, err := i.meter.Int64ObservableCounter(name, metric.WithUnit(unit), metric.WithDescription(description))
	return keep(i, x, err)
}

func (i *instruments) gauge(name, unit, description string) metric.Int64Observable {
	x, err := i.meter.Int64ObservableGauge(name, metric.WithUnit(unit), metric.WithDescription(description))
	return keep(i, x, err)
}

func (i *instruments) share(name, description string) metric.Float64Observable {
	x, err := i.meter.Float64ObservableGauge(name, metric.WithUnit("1"), metric.WithDescription(description))
	return keep(i, x, err)
}

func keep[T metric.Observable](i *instruments, x T, err error) T {
	i.all = append(i.all, x)
	i.errs = append(i.errs, err)
	return x
}

func (i *instruments) err() error { return errors.Join(i.errs...) }

// seriesOf builds the options of series from the attributes of a device, of the caller, and of the
// series.
type seriesOf []attribute.KeyValue

func newSeries(device, caller []attribute.KeyValue) seriesOf {
	return slices.Concat(device, caller)
}

func (s seriesOf) with(own ...attribute.KeyValue) []metric.ObserveOption {
	return []metric.ObserveOption{metric.WithAttributeSet(attribute.NewSet(slices.Concat(s, own)...))}
}
