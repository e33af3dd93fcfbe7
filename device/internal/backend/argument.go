package backend

import (
	"fmt"

	"github.com/cistern-ml/cistern/device"
)

// CheckUnits refuses a size that is not a positive multiple of unit, and an address that is not a
// multiple.
func (s Self) CheckUnits(op string, p device.Ptr, bytes, unit int64) error {
	if bytes <= 0 || bytes%unit != 0 {
		return s.Invalid(op, bytes, "%d bytes; the size must be a positive multiple of %d", bytes, unit)
	}
	if p%device.Ptr(unit) != 0 {
		return s.Invalid(op, bytes, "the address is not a multiple of %d", unit)
	}
	return nil
}

// CheckApart refuses a copy inside the device whose ranges overlap.
func (s Self) CheckApart(dst, src device.Ptr, bytes int64) error {
	apart := max(dst, src) - min(dst, src)
	if bytes > 0 && uint64(apart) < uint64(bytes) {
		return s.Invalid("CopyD2D", bytes, "source and destination are %d bytes apart; ranges of %d bytes overlap",
			apart, bytes)
	}
	return nil
}

// CheckPairs refuses a batch with different numbers of destinations and sources.
func (s Self) CheckPairs(op string, dst, src int) error {
	if dst != src {
		return s.Invalid(op, 0, "%d destinations and %d sources; give one source for each", dst, src)
	}
	return nil
}

// CheckElapsed refuses an event whose record has no time. which is "start" or "end".
func (s Self) CheckElapsed(which string, timed, recorded, complete bool) error {
	switch {
	case !timed:
		return s.Invalid("Elapsed", 0, "the %s event is untimed; make it with EventOptions.Timed", which)
	case !recorded:
		return s.Invalid("Elapsed", 0, "the %s event was never recorded", which)
	case !complete:
		return &device.Error{Op: "Elapsed", Device: string(s), Code: CodeNotReady, Err: device.ErrInvalid,
			Detail: fmt.Sprintf("the %s event is not complete; synchronize it first", which)}
	}
	return nil
}

// Event returns e as an event of the backend, whose events are pointers of type E.
func Event[E interface {
	comparable
	device.Event
}](s Self, op string, e device.Event) (E, error) {
	var none E
	mine, ok := e.(E)
	switch {
	case e == nil || ok && mine == none:
		return none, s.Invalid(op, 0, "the event is nil")
	case !ok:
		return none, s.Invalid(op, 0, "the event is a %T; use one that a device of this backend made", e)
	}
	return mine, nil
}

// CheckOwner refuses an event of device theirs on device mine.
func (s Self) CheckOwner(op string, theirs, mine uint64) error {
	if theirs != mine {
		return s.Invalid(op, 0, "the event is of device %d; use one of this device, %d", theirs, mine)
	}
	return nil
}
