package forecast

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"strconv"
	"strings"

	"github.com/cistern-ml/cistern/device"
	"github.com/cistern-ml/cistern/memcache"
	"github.com/cistern-ml/cistern/tensor"
	"github.com/cistern-ml/cistern/trace"
)

// trial is a run of a program.
type trial struct {
	name    string // of the dry device
	program Program
	options []tensor.Option

	config     string   // options of the cache to change
	checkpoint []string // layers of the training's plan; nil: the program's choice
	page       *page
	// done is called before the training is closed. It may be nil.
	done func(f *Forecast, training *Training, peak memcache.Profile) error
}

// with returns the trial with a change.
func (t trial) with(change func(*trial)) trial {
	change(&t)
	return t
}

// forecast runs the trial. If its device is too small, it runs it again on a device with unlimited
// memory, and calls advise, which may be nil, to add to the forecast.
func (t trial) forecast(ctx context.Context, advise func(trial, context.Context, *Forecast, *Training, memcache.Profile) error) (*Forecast, error) {
	f, err := t.run(ctx)
	if err == nil || f == nil || !errors.Is(err, memcache.ErrOutOfMemory) {
		return f, err
	}
	capacity := f.Capacity
	unlimited, again := withCapacity(t.name, maxCapacity)
	if again != nil {
		return nil, again
	}
	if t.page != nil {
		*t.page = page{limit: capacity}
	}
	f, again = t.with(func(u *trial) {
		u.name = unlimited
		u.done = func(f *Forecast, training *Training, peak memcache.Profile) error {
			f.Capacity, f.Fits = capacity, false
			if advise == nil {
				return nil
			}
			return advise(t, ctx, f, training, peak)
		}
	}).run(ctx)
	if again != nil {
		return nil, again
	}
	return f, nil
}

// maxCapacity is the capacity of a device with "unlimited" memory.
const maxCapacity = 1 << 45

// withCapacity returns the name of a device with another capacity.
func withCapacity(name string, bytes int64) (string, error) {
	kind, query, _ := strings.Cut(name, "?")
	options, err := url.ParseQuery(query)
	if err != nil {
		return "", fmt.Errorf("forecast: the options of %q: %w", name, err)
	}
	options.Set("capacity", strconv.FormatInt(bytes, 10))
	return kind + "?" + options.Encode(), nil
}

// run runs the trial on its device. After an error that wraps memcache.ErrOutOfMemory the forecast
// still has the device's capacity.
func (t trial) run(ctx context.Context) (f *Forecast, err error) {
	if !strings.HasPrefix(t.name, "dry:") {
		return nil, fmt.Errorf("forecast: device %q is not a dry device, such as dry:host or dry:cuda?gpu=L4; Measure takes other devices", t.name)
	}
	var shapes shapes
	rt, err := tensor.Open(t.name, append(t.options[:len(t.options):len(t.options)], tensor.OnOperation(shapes.note))...)
	if err != nil {
		return nil, fmt.Errorf("forecast: %w", err)
	}
	f, err = t.measure(ctx, rt, &shapes)
	if closed := rt.Close(); err == nil && closed != nil {
		err = fmt.Errorf("forecast: %w", closed)
	}
	return f, err
}

func (t trial) measure(ctx context.Context, rt *tensor.Runtime, shapes *shapes) (f *Forecast, err error) {
	defer func() {
		if err != nil {
			err = fmt.Errorf("forecast: %w", err)
		}
	}()
	if ctx == nil || rt == nil {
		return nil, fmt.Errorf("%w: the context or the runtime is nil", device.ErrInvalid)
	}
	if t.program == nil {
		return nil, errors.New("the program is nil")
	}
	f = &Forecast{Device: rt.Device().Name(), Capacity: rt.Device().Properties().TotalMemory, Fits: true}
	if t.config != "" {
		cfg, err := rt.Cache().Config().With(t.config)
		if err = errors.Join(err, rt.Cache().SetConfig(ctx, cfg)); err != nil {
			return nil, err
		}
	}
	rt.Cache().ResetPeakStats()
	log, err := startLog(rt.Cache())
	if err != nil {
		return f, err
	}
	defer log.end()
	if err := t.page.begin(rt.Cache()); err != nil {
		return f, err
	}
	profiler, err := trace.NewProfiler(trace.ProfilerConfig{Cache: rt.Cache(), Pool: rt.Pool(), Holders: true, OnProfile: func(s trace.StepProfile) { f.Step = s; t.page.add(s) }})
	if err != nil {
		return f, err
	}
	training, err := t.program(ctx, rt)
	if training != nil && training.Close != nil {
		defer func() { err = errors.Join(err, training.Close()) }()
	}
	if err == nil && (training == nil || training.Step == nil) {
		err = errors.New("the program returned no Training, or one without a Step")
	}
	if err != nil {
		return f, errors.Join(err, profiler.Close())
	}
	if t.checkpoint != nil && training.Plan != nil {
		err = training.Plan.Set(t.checkpoint...)
	}
	for number := int64(1); number <= 2 && err == nil; number++ {
		log.stream.Note(uint64(number))
		stepping, step := profiler.StartStep(ctx, number)
		err = training.Step(stepping)
		step.Fail(err)
		step.End()
	}
	log.end()
	if err = errors.Join(err, profiler.Close(), rt.Synchronize(context.WithoutCancel(ctx))); err != nil {
		return f, err
	}
	s := rt.Cache().Stats()
	f.AllocatedPeak, f.ReservedPeak = s.AllocatedBytes.All.Peak, s.ReservedBytes.All.Peak
	f.PinnedPeak = rt.Pool().Stats().HeldBytes.Peak
	peak := log.peak()
	f.PeakLine, f.Lines = peak.line, peak.lines()
	f.Layers = log.layers(training.Model, shapes)
	if err = t.page.end(rt.Cache(), f.Layers); err == nil && t.done != nil {
		err = t.done(f, training, peak.profile())
	}
	return f, err
}
