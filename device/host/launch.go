package host

import (
	"fmt"

	"github.com/cistern-ml/cistern/device"
)

func (s *stream) Launch(l *device.Launch) error {
	if s.launching != nil && !s.Capturing() {
		return s.launching.Launch(s, l, s.queueKernel)
	}
	return s.queueKernel(l)
}

func (s *stream) queueKernel(l *device.Launch) error {
	if err := s.usable("Launch"); err != nil {
		return err
	}
	if l == nil || l.Func == nil && (l.Kernel == nil || !s.dev.dry) {
		return self.Invalid("Launch", 0, "the kernel is nil; on the host device it is Launch.Func, a Go function")
	}
	var o *op
	claimed := l.Brief && s.member.capture() == nil && s.queue.claim()
	if claimed {
		o = &s.queue.brief
	} else {
		o = s.member.newOp(&s.queue, opLaunch)
	}
	o.kernel, o.name = l.Func, l.Name
	if l.Captured != nil && o.uses.capture != nil {
		*l.Captured = true
	}
	if err := s.dev.nameLaunch(&o.uses, l); err != nil {
		if claimed {
			s.finishClaimed(o)
			return err
		}
		return s.abandon(o, err)
	}
	if s.dev.fails(FaultLaunch) {
		o.fault = launchFailed(o.name, "launch failure on demand")
	}
	if claimed {
		s.runClaimed(o)
		return nil
	}
	return s.push("Launch", o)
}

func launchFailed(kernel, detail string) *device.Error {
	if kernel != "" {
		detail = fmt.Sprintf("%s: %s", kernel, detail)
	}
	return &device.Error{Op: "Launch", Device: "host", Code: device.CodeLaunchFailed, Detail: detail,
		Err: device.ErrSticky}
}
