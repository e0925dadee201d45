package wire

import (
	"crypto/tls"
	"encoding/binary"
	"io"
	"net"
	"sync"
	"time"
)

// bufferSize holds the plaintext of any TLS record, so that one read of a
// tls.Conn takes one whole record.
const bufferSize = 16 << 10

// buffer is where a read puts its bytes. Buffers are lent to connections only
// while these hold bytes; a stream that waits has none.
type buffer struct {
	bytes [bufferSize]byte
	msg   message
}

var buffers = sync.Pool{New: func() any { return new(buffer) }}

// conn is a connection whose reads carry stamps. One goroutine reads it at a
// time.
type conn struct {
	net.Conn         // the socket, as dialled
	client   *Client // for its clock and counts
	watch    *socket // the kernel's side of Conn; nil where we cannot see it
	tls      *tls.Conn
	records  recordEnds

	in    *buffer // bytes received and not yet consumed: in.bytes[r:w]
	r, w  int
	stamp Stamp // of those bytes
	plain *buffer

	failed  error    // of the last read: there will be no other
	history *history // for HTTP/2
	served  bool
	idle    time.Duration // since when
	closing sync.Once
}

// fill waits for bytes to arrive and stamps them. What was received before must
// have been consumed.
func (c *conn) fill() error {
	if c.failed != nil {
		return c.failed
	}
	c.history.enter()
	if c.watch != nil {
		c.failed = c.watch.fill(c)
	} else {
		c.failed = c.fillBlind()
	}
	if c.failed == nil {
		c.client.count.reads.Add(1)
		c.history.add(c.stamp)
	}
	return c.failed
}

// fillBlind reads a connection of which nothing but Read is known.
func (c *conn) fillBlind() error {
	b := buffers.Get().(*buffer)
	n, err := c.Conn.Read(b.bytes[:])
	if n == 0 {
		buffers.Put(b)
		if err == nil {
			err = io.ErrNoProgress
		}
		return err
	}
	now := c.client.clock.Now()
	c.in, c.r, c.w = b, 0, n
	c.stamp = Stamp{At: now, Earliest: now, Read: now}
	return nil // an error comes again with the next read
}

// next returns bytes of the answer, decrypted, and the stamp of the read that
// completed them. They are valid until release.
func (c *conn) next() ([]byte, Stamp, error) {
	if c.tls == nil {
		if c.r == c.w {
			if err := c.fill(); err != nil {
				return nil, Stamp{}, err
			}
		}
		b := c.in.bytes[c.r:c.w]
		c.r = c.w
		return b, c.stamp, nil
	}
	if c.r == c.w {
		// Wait here, where no buffer is held, rather than inside tls.Conn. That
		// meets the same error, and tells a clean end from a cut one.
		_ = c.fill()
	}
	c.plain = buffers.Get().(*buffer)
	n, err := c.tls.Read(c.plain.bytes[:])
	s := c.stamp
	s.More = c.r < c.w
	if n > 0 {
		err = nil
	}
	return c.plain.bytes[:n], s, err
}

// release gives back the buffers whose bytes were consumed.
func (c *conn) release() {
	if c.r == c.w && c.in != nil {
		buffers.Put(c.in)
		c.in, c.r, c.w = nil, 0, 0
	}
	if c.plain != nil {
		buffers.Put(c.plain)
		c.plain = nil
	}
}

// Read serves crypto/tls and HTTP/2. Under TLS it never reaches beyond the end
// of a record, so that what tls.Conn decrypted is what c.stamp is about.
func (c *conn) Read(b []byte) (int, error) {
	if len(b) == 0 {
		return 0, nil
	}
	if c.r == c.w {
		if err := c.fill(); err != nil {
			return 0, err
		}
	}
	from := c.in.bytes[c.r:c.w]
	if c.tls != nil {
		from = c.records.next(from, len(b))
	}
	n := copy(b, from)
	c.r += n
	if c.r == c.w {
		buffers.Put(c.in)
		c.in, c.r, c.w = nil, 0, 0
	}
	return n, nil
}

// write sends head and body, encrypted where need be.
func (c *conn) write(head, body []byte) error {
	const together = 32 << 10 // below this a copy is cheaper than a second write
	if len(body) > 0 && len(body) <= together {
		head, body = append(head, body...), nil
	}
	if c.tls != nil {
		if _, err := c.tls.Write(head); err != nil || len(body) == 0 {
			return err
		}
		_, err := c.tls.Write(body)
		return err
	}
	parts := net.Buffers{head}
	if len(body) > 0 {
		parts = append(parts, body)
	}
	_, err := parts.WriteTo(c.Conn)
	return err
}

// pending tells whether bytes were received that nobody consumed.
func (c *conn) pending() bool { return c.r < c.w }

// dead tells whether an idle connection can no longer be used: closed by the
// peer, or with bytes on it that nobody asked for. Connections that the kernel
// does not let us look into count as alive.
func (c *conn) dead() bool { return c.pending() || c.watch != nil && c.watch.dead() }

// past is a deadline that has always passed.
var past = time.Unix(1, 0)

// interrupt ends every read and write of c, now and later.
func (c *conn) interrupt() { c.Conn.SetDeadline(past) }

// Close may be called more than once.
func (c *conn) Close() error {
	var err error
	c.closing.Do(func() {
		if c.watch != nil {
			c.watch.close()
		}
		err = c.Conn.Close()
		c.client.count.open.Add(-1)
	})
	return err
}

// recordEnds follows the framing of TLS records (RFC 8446, section 5.1: type,
// version, and a length of two bytes, then that many).
type recordEnds struct {
	header [5]byte
	have   int // bytes of header seen
	left   int // bytes of the record's body to come
}

// next returns the beginning of b, at most limit bytes, that does not reach
// beyond the record's header or body that b begins in.
func (r *recordEnds) next(b []byte, limit int) []byte {
	b = b[:min(len(b), limit)]
	if r.left == 0 {
		n := copy(r.header[r.have:], b)
		if r.have += n; r.have == len(r.header) {
			r.have, r.left = 0, int(binary.BigEndian.Uint16(r.header[3:]))
		}
		return b[:n]
	}
	b = b[:min(len(b), r.left)]
	r.left -= len(b)
	return b
}
