// Package pages serves the memory pages of trace/live and Go's own profiles at one address.
package pages

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/pprof"
	"time"

	"github.com/cistern-ml/cistern/internal/hosts"
	"github.com/cistern-ml/cistern/tensor"
	"github.com/cistern-ml/cistern/trace"
	"github.com/cistern-ml/cistern/trace/live"
)

// Pages are served over HTTP while the program trains. A nil Pages does nothing.
type Pages struct {
	listener net.Listener
	address  string
	out      io.Writer
	server   *http.Server
	memory   *live.Handler
	served   chan error
}

// Listen begins to listen at an address. Begin prints the URL to out.
func Listen(address string, out io.Writer) (*Pages, error) {
	l, err := net.Listen("tcp", address)
	if err != nil {
		return nil, err
	}
	return &Pages{listener: l, address: address, out: out}, nil
}

// Begin serves the pages of a runtime until Close.
func (p *Pages) Begin(env *tensor.Runtime) (err error) {
	if p == nil {
		return nil
	}
	if p.memory, err = live.New(live.Config{Cache: env.Cache(), Pool: env.Pool(), Hosts: []string{p.address}}); err != nil {
		return err
	}
	mux := http.NewServeMux()
	mux.Handle("GET "+live.Prefix, p.memory)
	mux.Handle("GET /{$}", http.RedirectHandler(live.Prefix, http.StatusFound))
	for path, serve := range map[string]http.HandlerFunc{"": pprof.Index, "cmdline": pprof.Cmdline, "profile": pprof.Profile, "symbol": pprof.Symbol, "trace": pprof.Trace} {
		mux.HandleFunc("GET /debug/pprof/"+path, serve)
	}
	p.server = &http.Server{Handler: hosts.Check(mux, p.address), ReadHeaderTimeout: 10 * time.Second}
	p.served = make(chan error, 1)
	go func() { p.served <- p.server.Serve(p.listener) }()
	fmt.Fprintf(p.out, "memory pages on http://%s%s\n", p.listener.Addr(), live.Prefix)
	return nil
}

// Step is for trace.ProfilerConfig's OnProfile.
func (p *Pages) Step(s trace.StepProfile) {
	if p != nil && p.memory != nil {
		p.memory.Step(s)
	}
}

// Close ends the answers in flight within a second. A second call does nothing.
func (p *Pages) Close() (err error) {
	if p == nil || p.listener == nil {
		return nil
	}
	if p.server == nil {
		err = p.listener.Close()
	} else {
		err = p.memory.Close()
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		if e := p.server.Shutdown(ctx); e != nil {
			err = errors.Join(err, p.server.Close())
		}
		if e := <-p.served; !errors.Is(e, http.ErrServerClosed) {
			err = errors.Join(err, e)
		}
	}
	p.listener = nil
	return err
}
