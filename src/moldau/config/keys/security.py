"""TLS and SASL: Kafka's keys for the security protocols, which are not supported yet."""

from moldau.config.bounds import between, list_of_any, one_of, one_of_any_case
from moldau.config.keys.rows import (
    BY_LISTENER_ONLY,
    PER_BROKER,
    boolean,
    class_,
    double,
    int16,
    int32,
    int64,
    list_,
    password,
    string,
)

TLS = (
    string(
        "ssl.client.auth",
        "none",
        "Whether clients must present a certificate.",
        check=one_of("required", "requested", "none"),
        update=PER_BROKER,
    ),
    string(
        "ssl.principal.mapping.rules",
        "DEFAULT",
        "Rules that turn the name in a certificate into a principal.",
    ),
    boolean(
        "ssl.allow.dn.changes", False, "Whether a reloaded certificate may have another distinguished name."
    ),
    boolean(
        "ssl.allow.san.changes",
        False,
        "Whether a reloaded certificate may lack alternative names of the earlier certificate.",
    ),
    string("ssl.protocol", "TLSv1.3", "The TLS protocol of new contexts.", update=PER_BROKER),
    string("ssl.provider", None, "The security provider for TLS.", update=PER_BROKER),
    list_(
        "ssl.enabled.protocols",
        (
            "TLSv1.2",
            "TLSv1.3",
        ),
        "TLS protocols that connections may use.",
        check=list_of_any(),
        update=PER_BROKER,
    ),
    string(
        "ssl.keystore.type", "JKS", "The format of the key store.", update=PER_BROKER, limits=BY_LISTENER_ONLY
    ),
    string(
        "ssl.keystore.location",
        None,
        "The file of the key store.",
        update=PER_BROKER,
        limits=BY_LISTENER_ONLY,
    ),
    password(
        "ssl.keystore.password",
        None,
        "The password of the key store.",
        update=PER_BROKER,
        limits=BY_LISTENER_ONLY,
    ),
    password(
        "ssl.key.password",
        None,
        "The password of the private key.",
        update=PER_BROKER,
        limits=BY_LISTENER_ONLY,
    ),
    password(
        "ssl.keystore.key", None, "The private key in PEM form.", update=PER_BROKER, limits=BY_LISTENER_ONLY
    ),
    password(
        "ssl.keystore.certificate.chain",
        None,
        "The certificate chain in PEM form.",
        update=PER_BROKER,
        limits=BY_LISTENER_ONLY,
    ),
    string(
        "ssl.truststore.type",
        "JKS",
        "The format of the trust store.",
        update=PER_BROKER,
        limits=BY_LISTENER_ONLY,
    ),
    string(
        "ssl.truststore.location",
        None,
        "The file of the trust store.",
        update=PER_BROKER,
        limits=BY_LISTENER_ONLY,
    ),
    password(
        "ssl.truststore.password",
        None,
        "The password of the trust store.",
        update=PER_BROKER,
        limits=BY_LISTENER_ONLY,
    ),
    password(
        "ssl.truststore.certificates",
        None,
        "Trusted certificates in PEM form.",
        update=PER_BROKER,
        limits=BY_LISTENER_ONLY,
    ),
    string("ssl.keymanager.algorithm", "SunX509", "The algorithm of the key manager.", update=PER_BROKER),
    string("ssl.trustmanager.algorithm", "PKIX", "The algorithm of the trust manager.", update=PER_BROKER),
    string(
        "ssl.endpoint.identification.algorithm",
        "https",
        "How the host name in a certificate is checked; empty turns that off.",
        update=PER_BROKER,
    ),
    string(
        "ssl.secure.random.implementation", None, "The source of random numbers for TLS.", update=PER_BROKER
    ),
    list_(
        "ssl.cipher.suites",
        (),
        "Cipher suites that connections may use. If it is empty, they may use all.",
        check=list_of_any(),
        update=PER_BROKER,
    ),
    class_("ssl.engine.factory.class", None, "The class that makes TLS engines.", update=PER_BROKER),
)

SASL = (
    int32(
        "sasl.server.max.receive.size",
        524288,
        "The largest message of a SASL handshake that is received, in bytes.",
    ),
    class_(
        "principal.builder.class",
        "org.apache.kafka.common.security.authenticator.DefaultKafkaPrincipalBuilder",
        "The class that makes a principal from a connection.",
        update=PER_BROKER,
    ),
    string(
        "sasl.mechanism.inter.broker.protocol",
        "GSSAPI",
        "The SASL mechanism between brokers.",
        update=PER_BROKER,
    ),
    list_(
        "sasl.enabled.mechanisms",
        ("GSSAPI",),
        "SASL mechanisms that clients may use.",
        check=list_of_any(),
        update=PER_BROKER,
    ),
    class_(
        "sasl.server.callback.handler.class", None, "The class that answers SASL callbacks of the server."
    ),
    list_(
        "sasl.kerberos.principal.to.local.rules",
        ("DEFAULT",),
        "Rules that turn a Kerberos principal into a short name.",
        check=list_of_any(),
        update=PER_BROKER,
    ),
    password("sasl.jaas.config", None, "The JAAS login context.", update=PER_BROKER),
    class_(
        "sasl.client.callback.handler.class",
        None,
        "The class that answers SASL callbacks of this node's clients.",
    ),
    class_("sasl.login.class", None, "The class that logs in."),
    class_("sasl.login.callback.handler.class", None, "The class that answers callbacks of a log-in."),
    string("sasl.kerberos.service.name", None, "The Kerberos name of the service.", update=PER_BROKER),
    string("sasl.kerberos.kinit.cmd", "/usr/bin/kinit", "The path of `kinit`.", update=PER_BROKER),
    double(
        "sasl.kerberos.ticket.renew.window.factor",
        0.8,
        "The share of a ticket's life after which it is renewed.",
        update=PER_BROKER,
    ),
    double(
        "sasl.kerberos.ticket.renew.jitter",
        0.05,
        "The random share of the time before a renewal.",
        update=PER_BROKER,
    ),
    int64(
        "sasl.kerberos.min.time.before.relogin",
        60000,
        "The shortest time between log-ins, in milliseconds.",
        update=PER_BROKER,
    ),
    double(
        "sasl.login.refresh.window.factor",
        0.8,
        "The share of a credential's life after which it is refreshed.",
        update=PER_BROKER,
    ),
    double(
        "sasl.login.refresh.window.jitter",
        0.05,
        "The random share of the time before a renewal.",
        update=PER_BROKER,
    ),
    int16(
        "sasl.login.refresh.min.period.seconds",
        60,
        "The shortest time between refreshes of a credential.",
        update=PER_BROKER,
    ),
    int16(
        "sasl.login.refresh.buffer.seconds",
        300,
        "The minimum time between a refresh and the expiry of a credential.",
        update=PER_BROKER,
    ),
    int32("sasl.login.connect.timeout.ms", None, "How long a connection to an identity provider may take."),
    int32("sasl.login.read.timeout.ms", None, "How long an answer of an identity provider may take."),
    int64("sasl.login.retry.backoff.max.ms", 10000, "The longest wait between log-ins that fail."),
    int64("sasl.login.retry.backoff.ms", 100, "The first wait after a log-in that failed."),
    class_(
        "sasl.oauthbearer.jwt.retriever.class",
        "org.apache.kafka.common.security.oauthbearer.DefaultJwtRetriever",
        "The class that fetches tokens.",
    ),
    class_(
        "sasl.oauthbearer.jwt.validator.class",
        "org.apache.kafka.common.security.oauthbearer.DefaultJwtValidator",
        "The class that validates tokens.",
    ),
    string("sasl.oauthbearer.scope", None, "The scope in the request for a token."),
    string(
        "sasl.oauthbearer.client.credentials.client.id",
        None,
        "The client id for the client credentials grant.",
    ),
    password(
        "sasl.oauthbearer.client.credentials.client.secret",
        None,
        "The secret for the client credentials grant.",
    ),
    string(
        "sasl.oauthbearer.assertion.algorithm",
        "RS256",
        "The algorithm that signs an assertion.",
        check=one_of_any_case("ES256", "RS256"),
    ),
    string("sasl.oauthbearer.assertion.claim.aud", None, "The audience claim of an assertion."),
    int32(
        "sasl.oauthbearer.assertion.claim.exp.seconds",
        300,
        "How long an assertion is valid.",
        check=between(0, 86400),
    ),
    string("sasl.oauthbearer.assertion.claim.iss", None, "The issuer claim of an assertion."),
    boolean(
        "sasl.oauthbearer.assertion.claim.jti.include", False, "Whether an assertion has an id of its own."
    ),
    int32(
        "sasl.oauthbearer.assertion.claim.nbf.seconds",
        60,
        "The validity of an assertion begins this long before its creation.",
        check=between(0, 3600),
    ),
    string("sasl.oauthbearer.assertion.claim.sub", None, "The subject claim of an assertion."),
    string("sasl.oauthbearer.assertion.file", None, "A file with a finished assertion."),
    string("sasl.oauthbearer.assertion.private.key.file", None, "The file of the key that signs assertions."),
    password(
        "sasl.oauthbearer.assertion.private.key.passphrase",
        None,
        "The passphrase of the key that signs assertions.",
    ),
    string("sasl.oauthbearer.assertion.template.file", None, "A template with further claims of assertions."),
    string("sasl.oauthbearer.scope.claim.name", "scope", "The claim that holds the scope."),
    string("sasl.oauthbearer.sub.claim.name", "sub", "The claim that holds the subject."),
    string("sasl.oauthbearer.token.endpoint.url", None, "The URL of the token endpoint."),
    string("sasl.oauthbearer.jwks.endpoint.url", None, "The URL of the provider's keys."),
    int64(
        "sasl.oauthbearer.jwks.endpoint.refresh.ms",
        3600000,
        "How often the provider's keys are fetched again.",
    ),
    int64(
        "sasl.oauthbearer.jwks.endpoint.retry.backoff.ms",
        100,
        "The first wait after a fetch of keys that failed.",
    ),
    int64(
        "sasl.oauthbearer.jwks.endpoint.retry.backoff.max.ms",
        10000,
        "The longest wait after fetches of keys that fail.",
    ),
    int32(
        "sasl.oauthbearer.clock.skew.seconds", 30, "By how much clocks may differ when a token is validated."
    ),
    list_("sasl.oauthbearer.expected.audience", (), "Audiences that a token may have.", check=list_of_any()),
    string("sasl.oauthbearer.expected.issuer", None, "The issuer that a token must have."),
)
