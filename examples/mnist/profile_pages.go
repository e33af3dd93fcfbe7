package main

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

// pages are what -http serves: the device memory beside Go's own profiles.
type pages struct {
	listener net.Listener
	address  string // of -http, whose name is known
	out      io.Writer
	server   *http.Server
	memory   *live.Handler
	served   chan error
}

func listen(address string, out io.Writer) (*pages, error) {
	if address == "" {
		return nil, nil
	}
	l, err := net.Listen("tcp", address)
	if err != nil {
		return nil, fmt.Errorf("mnist: -http: %w", err)
	}
	return &pages{listener: l, address: address, out: out}, nil
}

// begin serves until close.
func (p *pages) begin(env *tensor.Runtime) (err error) {
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

func (p *pages) step(s trace.StepProfile) {
	if p != nil && p.memory != nil {
		p.memory.Step(s)
	}
}

// close ends the answers that are under way within a second.
func (p *pages) close() error {
	if p == nil {
		return nil
	}
	if p.server == nil {
		return p.listener.Close()
	}
	err := p.memory.Close()
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	if e := p.server.Shutdown(ctx); e != nil {
		err = errors.Join(err, p.server.Close())
	}
	if e := <-p.served; !errors.Is(e, http.ErrServerClosed) {
		err = errors.Join(err, fmt.Errorf("mnist: -http: %w", e))
	}
	p.server = nil
	return err
}
