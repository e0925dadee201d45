package main

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"io"
	"log"
	"math/big"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"time"
)

// startServer starts a server of a kind on a loopback port:
//
//	engine       a simulated engine, as trueload sim serves it
//	KIND         a server that misbehaves in that way from the start
//	later-KIND   an engine that answers the probe and misbehaves from then on
func startServer(kind string) (url string, stop func(), err error) {
	engine, err := simCmd{Replicas: 1, Profile: "tiny", Model: "sim", Router: "round-robin", Seed: 1}.server()
	if err != nil {
		return "", nil, err
	}
	bad, later := strings.CutPrefix(kind, "later-")
	ended := make(chan struct{})
	var once sync.Once
	var srv *httptest.Server
	handle := func(w http.ResponseWriter, r *http.Request) { engine.ServeHTTP(w, r) }
	if kind != "engine" {
		misbehave := misbehaviours[bad]
		switch {
		case bad == "refuse": // from this request on, which is cut
			misbehave = func(w http.ResponseWriter, r *http.Request, _ <-chan struct{}) {
				srv.Listener.Close()
				hijack(w).Close()
			}
		case misbehave == nil && bad != "expired":
			return "", nil, fmt.Errorf("there is no server of kind %q", kind)
		}
		handle = func(w http.ResponseWriter, r *http.Request) {
			probing := r.Method == http.MethodGet || strings.HasPrefix(r.Header.Get("X-Request-Id"), "trueload-probe")
			if bad == "expired" || later && probing {
				engine.ServeHTTP(w, r)
				return
			}
			misbehave(w, r, ended)
		}
	}
	srv = httptest.NewUnstartedServer(http.HandlerFunc(handle))
	srv.Config.ErrorLog = log.New(io.Discard, "", 0)
	switch {
	case bad == "expired":
		cert, err := certificate(time.Now().Add(-48*time.Hour), time.Now().Add(-24*time.Hour))
		if err != nil {
			return "", nil, err
		}
		srv.TLS = &tls.Config{Certificates: []tls.Certificate{cert}}
		srv.StartTLS()
	default:
		srv.Start()
	}
	stop = func() {
		once.Do(func() { close(ended) })
		srv.CloseClientConnections()
		srv.Close()
		engine.Close()
	}
	if kind == "refuse" {
		stop()
	}
	return srv.URL, stop, nil
}

// A misbehaviour answers a request as no server should; it returns when ended is closed.
type misbehaviour func(w http.ResponseWriter, r *http.Request, ended <-chan struct{})

var misbehaviours = map[string]misbehaviour{
	// The connection is reset where an answer should come.
	"reset": func(w http.ResponseWriter, r *http.Request, _ <-chan struct{}) {
		c := hijack(w)
		c.(*net.TCPConn).SetLinger(0)
		c.Close()
	},
	// The request is read and never answered.
	"silent": func(w http.ResponseWriter, r *http.Request, ended <-chan struct{}) {
		c := hijack(w)
		<-ended
		c.Close()
	},
	// Two tokens come, and then nothing more.
	"stall": func(w http.ResponseWriter, r *http.Request, ended <-chan struct{}) {
		w.Header().Set("Content-Type", "text/event-stream")
		for range 2 {
			io.WriteString(w, `data: {"id":"x","object":"chat.completion.chunk","choices":[{"index":0,"delta":{"content":" the"},"finish_reason":null}]}`+"\n\n")
			w.(http.Flusher).Flush()
		}
		select {
		case <-ended:
		case <-r.Context().Done():
		}
	},
	// Something that is not HTTP.
	"garbage": func(w http.ResponseWriter, r *http.Request, _ <-chan struct{}) {
		c := hijack(w)
		c.Write(bytes.Repeat([]byte{0x00, 0xff, 0x1b, '[', '3', '1', 'm', 0xfe}, 512))
		c.Close()
	},
	// HTTP, whose event stream is no JSON.
	"garbage-events": func(w http.ResponseWriter, r *http.Request, _ <-chan struct{}) {
		w.Header().Set("Content-Type", "text/event-stream")
		io.WriteString(w, "data: \x00\xff{{{\x1b[31m\n\n")
	},
	// 100 MB in one line.
	"long-line": func(w http.ResponseWriter, r *http.Request, _ <-chan struct{}) {
		w.Header().Set("Content-Type", "text/event-stream")
		io.WriteString(w, "data: ")
		block := bytes.Repeat([]byte("x"), 1<<20)
		for range 100 {
			if _, err := w.Write(block); err != nil {
				return
			}
		}
	},
	"503": func(w http.ResponseWriter, r *http.Request, _ <-chan struct{}) {
		answer(w, http.StatusServiceUnavailable, `{"error":{"message":"no healthy upstream","type":"server_error","code":503}}`)
	},
	// The header that was sent comes back in the error.
	"401": func(w http.ResponseWriter, r *http.Request, _ <-chan struct{}) {
		answer(w, http.StatusUnauthorized, fmt.Sprintf(`{"error":{"message":"incorrect API key provided: %s","type":"invalid_request_error","code":"invalid_api_key"}}`, r.Header.Get("Authorization")))
	},
	"500": func(w http.ResponseWriter, r *http.Request, _ <-chan struct{}) {
		answer(w, http.StatusInternalServerError, fmt.Sprintf(`{"error":{"message":"cannot serve %q","type":"internal"}}`, r.Header))
	},
	// A proxy's page, with a status that says all is well.
	"html": func(w http.ResponseWriter, r *http.Request, _ <-chan struct{}) {
		w.Header().Set("Content-Type", "text/html")
		io.WriteString(w, "<!doctype html><html><head><title>Sign in</title></head><body><h1>Sign in to continue</h1></body></html>")
	},
}

func answer(w http.ResponseWriter, status int, body string) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	io.WriteString(w, body)
}

func hijack(w http.ResponseWriter) net.Conn {
	c, _, err := w.(http.Hijacker).Hijack()
	if err != nil {
		panic(err)
	}
	return c
}

// certificate makes a self-signed certificate for loopback.
func certificate(from, to time.Time) (tls.Certificate, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return tls.Certificate{}, err
	}
	tmpl := &x509.Certificate{
		SerialNumber: big.NewInt(1), NotBefore: from, NotAfter: to,
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, DNSNames: []string{"localhost"},
	}
	der, err := x509.CreateCertificate(rand.Reader, tmpl, tmpl, &key.PublicKey, key)
	if err != nil {
		return tls.Certificate{}, err
	}
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}, nil
}

// serveHandler serves h on a loopback port.
func serveHandler(h http.Handler) (url string, stop func()) {
	srv := httptest.NewServer(h)
	return srv.URL, func() { srv.CloseClientConnections(); srv.Close() }
}
