package main

import (
	"context"
	"errors"
	"os"
	"os/signal"
	"syscall"
)

// signalled is the cause of a context that a signal has ended.
type signalled struct{ signal os.Signal }

func (s signalled) Error() string { return s.signal.String() + " signal received" }

// untilSignal returns a context that the first Ctrl-C, or a SIGTERM, ends: the run ends after the present step, and tells
// what there is. The second one ends the program.
func untilSignal(ctx context.Context) (_ context.Context, stop func()) {
	ctx, cancel := context.WithCancelCause(ctx)
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM)
	go func() {
		select {
		case s := <-signals:
			cancel(signalled{s})
		case <-ctx.Done():
		}
		signal.Stop(signals)
	}()
	return ctx, func() { cancel(nil) }
}

// interrupted reports whether err is only that ctx has ended.
func interrupted(ctx context.Context, err error) bool {
	return ctx.Err() != nil && (errors.Is(err, ctx.Err()) || errors.Is(err, context.Cause(ctx)))
}

// exitStatus is 0, or that which shells give a program that a signal has ended: 130 after Ctrl-C, 143 after SIGTERM.
func exitStatus(ctx context.Context) int {
	if ctx.Err() == nil {
		return 0
	}
	number := syscall.SIGINT
	var s signalled
	if errors.As(context.Cause(ctx), &s) {
		if n, ok := s.signal.(syscall.Signal); ok {
			number = n
		}
	}
	return 128 + int(number)
}
