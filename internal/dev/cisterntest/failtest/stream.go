package failtest

import (
	"context"

	"github.com/cistern-ml/cistern/device"
)

// hostOnly has the additional methods of host devices' streams.
type hostOnly interface {
	device.BatchCopier
	device.GraphCapturer
	device.ReplayNotifier
	device.CaptureOrder
}

// hostStream is a stream of a host device.
type hostStream struct {
	*stream
	hostOnly
}

func (s *hostStream) CopyH2DBatch(dst []device.Ptr, src [][]byte) error {
	if err := s.faults.call("CopyH2DBatch"); err != nil {
		return err
	}
	return s.hostOnly.CopyH2DBatch(dst, src)
}

func (s *hostStream) CopyD2HBatch(dst [][]byte, src []device.Ptr) error {
	if err := s.faults.call("CopyD2HBatch"); err != nil {
		return err
	}
	return s.hostOnly.CopyD2HBatch(dst, src)
}

// stream is a stream whose driver calls may fail.
type stream struct {
	device.Stream
	dev    device.Device
	faults *Faults
}

func (s *stream) Device() device.Device { return s.dev }

func (s *stream) CopyH2D(dst device.Ptr, src []byte) error {
	if err := s.faults.call("CopyH2D"); err != nil {
		return err
	}
	return s.Stream.CopyH2D(dst, src)
}

func (s *stream) CopyD2H(dst []byte, src device.Ptr) error {
	if err := s.faults.call("CopyD2H"); err != nil {
		return err
	}
	return s.Stream.CopyD2H(dst, src)
}

func (s *stream) CopyD2D(dst, src device.Ptr, bytes int64) error {
	if err := s.faults.call("CopyD2D"); err != nil {
		return err
	}
	return s.Stream.CopyD2D(dst, src, bytes)
}

func (s *stream) Copy2D(c *device.Copy2D) error {
	if err := s.faults.call("Copy2D"); err != nil {
		return err
	}
	return s.Stream.Copy2D(c)
}

func (s *stream) Memset(dst device.Ptr, value byte, bytes int64) error {
	if err := s.faults.call("Memset"); err != nil {
		return err
	}
	return s.Stream.Memset(dst, value, bytes)
}

func (s *stream) Launch(l *device.Launch) error {
	if err := s.faults.call("Launch"); err != nil {
		return err
	}
	return s.Stream.Launch(l)
}

func (s *stream) Record(e device.Event) error {
	if err := s.faults.call("Record"); err != nil {
		return err
	}
	return s.Stream.Record(inner(e))
}

func (s *stream) Wait(e device.Event) error {
	if err := s.faults.call("Wait"); err != nil {
		return err
	}
	return s.Stream.Wait(inner(e))
}

func (s *stream) OnDone(fn func(error)) error {
	if err := s.faults.call("OnDone"); err != nil {
		return err
	}
	return s.Stream.OnDone(fn)
}

func (s *stream) Query() (bool, error) {
	if err := s.faults.call("Query"); err != nil {
		return false, err
	}
	return s.Stream.Query()
}

func (s *stream) Synchronize(ctx context.Context) error {
	if err := s.faults.call("Stream.Synchronize"); err != nil {
		return err
	}
	return s.Stream.Synchronize(ctx)
}
